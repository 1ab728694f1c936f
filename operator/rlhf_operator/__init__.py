"""The Kubernetes operator: observes RLHFJobs, decides, acts. Its parts are not written yet."""
