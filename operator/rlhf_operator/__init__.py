"""The Kubernetes operator: observes RLHFJobs, decides, acts."""
